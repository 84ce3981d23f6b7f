-- Logs that got another owner in the period, by UTC day, after a hand-over (`planned`) and after a crash, with the time
-- without an owner, ms. After a crash it is a bound from above.
WITH claimed AS (
  SELECT date_format(timestamp_millis(coordinators.from_ms), 'yyyy-MM-dd') AS claimed_day, planned, unowned_ms
  FROM coordinators CROSS JOIN period
  WHERE unowned_ms IS NOT NULL AND coordinators.from_ms >= period.from_ms AND coordinators.from_ms < period.to_ms
),
ranked AS (
  SELECT *, count(*) OVER (PARTITION BY claimed_day, planned) AS claims,
         bigint(row_number() OVER (PARTITION BY claimed_day, planned ORDER BY unowned_ms)) - 1 AS place
  FROM claimed
)
SELECT claimed_day, planned, count(*) AS takeovers,
       sum(unowned_ms * greatest(0, 2 - abs(2 * place - (claims - 1)))) / 2 AS median_ms,
       max(unowned_ms) AS longest_ms
FROM ranked
GROUP BY claimed_day, planned
