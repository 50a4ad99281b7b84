"""Reports of runs: the timeline of a trace, drawings, HTML pages, `report.json`, tables for a terminal."""
