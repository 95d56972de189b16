"""A depth-capped suffix tree with counts, built token by token, lazily.

Every suffix of the text is a path from the root; a node counts how often its path occurred. A path
that occurred once is one leaf that remembers its text position; it is unfolded, a level at a time,
only when a second occurrence arrives. Appending a token costs O(number of suffixes seen before),
not O(depth cap) or O(history), and a text of n tokens makes O(n) nodes plus one per repeated
suffix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BOUNDARY = -1  # between the texts of a store; never matched, never proposed


class Node:
    """``count`` occurrences of the path; ``end`` is the position after its last token in the first
    of them. ``ranked`` holds the children of highest count, the more recent first among equals.
    """

    __slots__ = ("children", "continued", "count", "end", "ranked", "token")

    def __init__(self, token: int, end: int) -> None:
        self.token = token
        self.end = end
        self.count = 1
        self.continued = (
            0  # occurrences that were followed by a token: the children's counts summed
        )
        self.children: dict[int, Node] | None = None
        self.ranked: list[Node] = []


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the tree: a node, or (None) a path of one occurrence inside a leaf, whose text
    goes on at ``end``.
    """

    node: Node | None
    end: int


@dataclass(frozen=True, slots=True)
class Match:
    """A suffix of the query that occurs in the tree."""

    length: int
    cursor: Cursor


class SuffixTree:
    """``max_depth`` caps a path's length, ``num_ranked`` the children kept in order per node."""

    def __init__(self, *, max_depth: int, num_ranked: int) -> None:
        self._max_depth = max_depth
        self._num_ranked = num_ranked
        self._tokens: list[int] = []
        self._root = Node(BOUNDARY, 0)
        self._root.children = {}
        # Repeated suffixes of the text, shortest first. Entry i has length i + 1: every suffix of a
        # repeated suffix is repeated too.
        self._active: list[Node] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, token: int) -> None:
        """Add one token to the text."""
        self._tokens.append(token)
        if token == BOUNDARY:
            self._active = []
            return
        active: list[Node] = []
        for depth, parent in enumerate((self._root, *self._active), start=1):
            if depth > self._max_depth:
                break
            node = self._visit(parent, token, depth)
            if node.count > 1:
                active.append(node)
        self._active = active

    def _visit(self, parent: Node, token: int, depth: int) -> Node:
        """Count ``token`` after ``parent``; a node met for the second time unfolds one level of its
        leaf.
        """
        if parent.children is None:
            parent.children = {}
        node = parent.children.get(token)
        if node is None:
            node = Node(token, len(self._tokens))
            parent.children[token] = node
        else:
            node.count += 1
            if node.count == 2 and depth < self._max_depth:
                self._unfold(node)
        parent.continued += 1
        self._rank(parent.ranked, node)
        return node

    def _unfold(self, leaf: Node) -> None:
        """Give a node that had one occurrence until now that occurrence's next token as a child."""
        token = self._tokens[leaf.end]
        leaf.children = {}
        if token != BOUNDARY:
            child = Node(token, leaf.end + 1)
            leaf.children[token] = child
            leaf.continued = 1
            leaf.ranked = [child]

    def _rank(self, ranked: list[Node], node: Node) -> None:
        """Keep the highest counts in order after ``node`` gained one."""
        if node in ranked:
            place = ranked.index(node)
        elif len(ranked) < self._num_ranked:
            ranked.append(node)
            place = len(ranked) - 1
        elif ranked[-1].count <= node.count:
            ranked[-1] = node
            place = len(ranked) - 1
        else:
            return
        while place and ranked[place - 1].count <= node.count:
            ranked[place - 1], ranked[place] = node, ranked[place - 1]
            place -= 1

    def suffix_matches(self) -> list[Match]:
        """Suffixes of the text itself that occurred before, shortest first."""
        return [
            Match(length, Cursor(node, node.end)) for length, node in enumerate(self._active, 1)
        ]

    def follow(self, matches: Sequence[Match], token: int) -> list[Match]:
        """Matches of a query that grew by ``token``, shortest first. The tree is not changed."""
        followed: list[Match] = []
        for match in (Match(0, Cursor(self._root, 0)), *matches):
            if match.length < self._max_depth:
                cursor = self._step(match.cursor, token)
                if cursor is not None:
                    followed.append(Match(match.length + 1, cursor))
        return followed

    def _step(self, cursor: Cursor, token: int) -> Cursor | None:
        node = cursor.node
        if node is not None and node.children is not None:
            child = node.children.get(token)
            return None if child is None else Cursor(child, child.end)
        if node is not None and node.count > 1:  # at the depth cap
            return None
        if cursor.end < len(self._tokens) and self._tokens[cursor.end] == token != BOUNDARY:
            return Cursor(None, cursor.end + 1)
        return None

    def continuations(self, cursor: Cursor) -> list[tuple[int, float, Cursor]]:
        """Next tokens with their share of the occurrences that went on, most frequent first."""
        node = cursor.node
        if node is not None and node.children is not None:
            return [
                (child.token, child.count / node.continued, Cursor(child, child.end))
                for child in node.ranked
            ]
        if node is not None and node.count > 1:  # at the depth cap
            return []
        if cursor.end < len(self._tokens) and self._tokens[cursor.end] != BOUNDARY:
            return [(self._tokens[cursor.end], 1.0, Cursor(None, cursor.end + 1))]
        return []
