-- Times in which nobody had a partition of a group, one row each, within the period.
-- A gap begins where an ownership ended, and ends where it was settled what comes after it: with the next one, with an
-- assignment that left the partition out, or with its topic or group. `empty_ms` of it the group had no members.
WITH gaps AS (
  SELECT group_id, topic, partition, ended_by, greatest(assignments.to_ms, period.from_ms) AS from_ms,
         least(coalesce(settled_ms, period.to_ms), period.to_ms) AS to_ms
  FROM assignments CROSS JOIN period
  WHERE assignments.to_ms IS NOT NULL
),
empty AS (
  SELECT group_id, from_ms AS empty_from_ms, coalesce(to_ms, 9223372036854775807) AS empty_to_ms
  FROM generations WHERE members = 0
)
SELECT /*+ MERGE(empty) */ gaps.group_id, topic, partition, ended_by, from_ms, to_ms, to_ms - from_ms AS length_ms,
       coalesce(sum(least(to_ms, empty_to_ms) - greatest(from_ms, empty_from_ms))
                FILTER (WHERE empty_from_ms IS NOT NULL), 0) AS empty_ms
FROM gaps LEFT JOIN empty ON empty.group_id = gaps.group_id AND empty_from_ms < to_ms AND empty_to_ms > from_ms
WHERE to_ms > from_ms
GROUP BY gaps.group_id, topic, partition, ended_by, from_ms, to_ms
