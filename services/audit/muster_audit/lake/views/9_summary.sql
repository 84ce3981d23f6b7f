-- The period in one row, to be laid beside the one before.
SELECT
  (SELECT sum(owned_ms) / sum(owned_ms + unowned_ms) FROM ownership) AS availability,
  (SELECT coalesce(sum(unowned_ms), 0) FROM ownership) AS unowned_ms,
  (SELECT coalesce(sum(rebalances), 0) FROM rebalances) AS rebalances,
  (SELECT coalesce(sum(moves), 0) FROM rebalances) AS moves,
  (SELECT coalesce(sum(minimum_moves), 0) FROM rebalances) AS minimum_moves,
  (SELECT count(*) FROM flapping WHERE unexpected > 0) AS flapping,
  (SELECT coalesce(sum(commits), 0) FROM commit_rates) AS commits,
  (SELECT count(*) FROM stalls) AS stalls,
  (SELECT coalesce(sum(takeovers), 0) FROM takeovers WHERE NOT planned) AS crashes,
  (SELECT coalesce(max(longest_ms), 0) FROM takeovers WHERE NOT planned) AS slowest_takeover_ms
