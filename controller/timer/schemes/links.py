"""Circular doubly linked lists whose members are their own nodes: a list is a `Link` that stands for its ends, and
what is in it can be taken out in constant time without knowing which list that is."""

from __future__ import annotations


class Link:
    """A node, or the sentinel of a list. Alone (in no list, or an empty list), it is its own neighbour."""

    __slots__ = ("next", "previous")

    def __init__(self) -> None:
        self.next: Link = self
        self.previous: Link = self


def insert_after(place: Link, link: Link) -> None:
    following = place.next
    link.previous = place
    link.next = following
    place.next = link
    following.previous = link


def append(sentinel: Link, link: Link) -> None:
    insert_after(sentinel.previous, link)


def unlink(link: Link) -> None:
    """Out of whatever list it is in; harmless for a link that is alone."""
    link.previous.next = link.next
    link.next.previous = link.previous
    link.next = link.previous = link


def take_all(source: Link, target: Link) -> None:
    """Everything in the list of `source`, in order, to the end of the list of `target`, in constant time."""
    first, last = source.next, source.previous
    if first is source:
        return
    before = target.previous
    before.next = first
    first.previous = before
    last.next = target
    target.previous = last
    source.next = source.previous = source
