-- Members that came more than once in the period: a static one by its static id, a dynamic one by client id and host.
-- `unexpected` lives ended because the member was silent or late.
SELECT group_id, group_instance_id,
       CASE WHEN group_instance_id = '' THEN client_id ELSE '' END AS client_id,
       CASE WHEN group_instance_id = '' THEN host ELSE '' END AS host,
       count(*) AS lives,
       count_if(ended_by IN ('session expired', 'disconnected', 'rebalance timeout', 'not rejoined')) AS unexpected,
       percentile(members.to_ms - members.from_ms, 0.5) AS median_life_ms
FROM members CROSS JOIN period
WHERE members.from_ms >= period.from_ms AND members.from_ms < period.to_ms
GROUP BY group_id, group_instance_id, CASE WHEN group_instance_id = '' THEN client_id ELSE '' END,
         CASE WHEN group_instance_id = '' THEN host ELSE '' END
HAVING count(*) > 1
