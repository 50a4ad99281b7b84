"""A binary search tree of timers by due tick, plain or balanced (AVL): the form of scheme 3 that is not a heap.

A plain tree takes log n steps a timer while intervals are random, and degenerates into a list where they are equal, as
timeouts mostly are: every timer is due after all others and becomes the right child of the last. A balanced tree
rotates where the heights of two neighbours differ by two, so that its height stays below 1.45 log2 n (Adelson-Velsky
and Landis, 1962).

A caller keeps the node that `insert` returns: `remove` compares no keys.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class TreeNode(Generic[T]):
    """`height`: 1 for a leaf; kept by a balanced tree only."""

    __slots__ = ("above", "due_tick", "height", "item", "left", "right")

    def __init__(self, due_tick: int, item: T, above: TreeNode[T] | None) -> None:
        self.due_tick = due_tick
        self.item = item
        self.above = above
        self.left: TreeNode[T] | None = None
        self.right: TreeNode[T] | None = None
        self.height = 1


class SearchTree(Generic[T]):
    """Items in the order of their due ticks, and of their insertion where those are equal."""

    def __init__(self, balanced: bool) -> None:
        self.balanced = balanced
        self.root: TreeNode[T] | None = None
        self.first: TreeNode[T] | None = None
        """The node that is due before all others."""

    def insert(self, due_tick: int, item: T) -> TreeNode[T]:
        above, node, leftmost, to_the_left = None, self.root, True, False
        while node is not None:
            above = node
            to_the_left = due_tick < node.due_tick
            if to_the_left:
                node = node.left
            else:
                node, leftmost = node.right, False
        made = TreeNode(due_tick, item, above)
        if above is None:
            self.root = made
        elif to_the_left:
            above.left = made
        else:
            above.right = made
        if leftmost:
            self.first = made
        if self.balanced:
            self._rebalance(above)
        return made

    def remove(self, node: TreeNode[T]) -> None:
        if node is self.first:
            self.first = node.above if node.right is None else leftmost_of(node.right)
        if node.left is None or node.right is None:
            changed = node.above
            self._put(node.left or node.right, node)
        else:
            changed = self._put_successor(node)
        if self.balanced:
            self._rebalance(changed)

    def height(self) -> int:
        """Count the nodes from the root to the deepest leaf, in O(n)."""
        level, count = [] if self.root is None else [self.root], 0
        while level:
            count += 1
            level = [below for node in level for below in (node.left, node.right) if below is not None]
        return count

    def _put_successor(self, node: TreeNode[T]) -> TreeNode[T]:
        """Replace a node that has two children by the next in order; return the lowest node whose height may change."""
        assert node.left is not None
        assert node.right is not None
        successor = leftmost_of(node.right)
        changed = successor
        if successor is not node.right:
            assert successor.above is not None
            changed = successor.above
            changed.left = successor.right
            if successor.right is not None:
                successor.right.above = changed
            successor.right = node.right
            node.right.above = successor
        self._put(successor, node)
        successor.height = node.height
        successor.left = node.left
        node.left.above = successor
        return changed

    def _put(self, node: TreeNode[T] | None, place: TreeNode[T]) -> None:
        """Hang a subtree where `place` hangs."""
        above = place.above
        if above is None:
            self.root = node
        elif above.left is place:
            above.left = node
        else:
            above.right = node
        if node is not None:
            node.above = above

    def _rebalance(self, node: TreeNode[T] | None) -> None:
        """From a node whose subtree changed up to the first whose height did not."""
        while node is not None:
            left, right = height_of(node.left), height_of(node.right)
            if left > right + 1:
                assert node.left is not None
                if height_of(node.left.left) < height_of(node.left.right):
                    self._rotate_left(node.left)
                top = self._rotate_right(node)
            elif right > left + 1:
                assert node.right is not None
                if height_of(node.right.right) < height_of(node.right.left):
                    self._rotate_right(node.right)
                top = self._rotate_left(node)
            else:
                top = node
                if node.height == (height := 1 + max(left, right)):
                    return
                node.height = height
            node = top.above

    def _rotate_left(self, node: TreeNode[T]) -> TreeNode[T]:
        """The right child takes the place of the node, which becomes its left child; return it."""
        top = node.right
        assert top is not None
        node.right = top.left
        if top.left is not None:
            top.left.above = node
        self._put(top, node)
        top.left = node
        return _on_top(top, node)

    def _rotate_right(self, node: TreeNode[T]) -> TreeNode[T]:
        top = node.left
        assert top is not None
        node.left = top.right
        if top.right is not None:
            top.right.above = node
        self._put(top, node)
        top.right = node
        return _on_top(top, node)


def _on_top(top: TreeNode[T], node: TreeNode[T]) -> TreeNode[T]:
    node.above = top
    node.height = 1 + max(height_of(node.left), height_of(node.right))
    top.height = 1 + max(height_of(top.left), height_of(top.right))
    return top


def height_of(node: TreeNode[T] | None) -> int:
    return 0 if node is None else node.height


def leftmost_of(node: TreeNode[T]) -> TreeNode[T]:
    while node.left is not None:
        node = node.left
    return node
