-- Marks a log that is gone, so that it is known again: the mark goes with the next loss, and when the log is filled.
-- ARGV[4]: the mark to leave. KEYS[5]: where. Answers the mark that is there.
local missing = absent()
if not missing then return {'OK'} end
if missing[2] == 'foreign' then return missing end
redis.call('SET', KEYS[5], ARGV[4], 'NX')
return {'NOLOG', missing[2], redis.call('GET', KEYS[5])}
