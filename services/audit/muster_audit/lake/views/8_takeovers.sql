-- Logs that got another owner in the period, by UTC day, after a hand-over (`planned`) and after a crash, with the time
-- without an owner, ms. After a crash it is a bound from above.
SELECT date_format(timestamp_millis(coordinators.from_ms), 'yyyy-MM-dd') AS claimed_day, planned,
       count(*) AS takeovers, percentile(unowned_ms, 0.5) AS median_ms, max(unowned_ms) AS longest_ms
FROM coordinators CROSS JOIN period
WHERE unowned_ms IS NOT NULL AND coordinators.from_ms >= period.from_ms AND coordinators.from_ms < period.to_ms
GROUP BY claimed_day, planned
