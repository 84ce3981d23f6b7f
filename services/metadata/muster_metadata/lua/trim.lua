-- Removes what is before ARGV[4]. ARGV[5], ARGV[6]: id and hash of a later Snapshot marker, which must
-- stand in the log: so the last entry is never removed.
local refused = refusal()
if refused then return refused end
if hash_at(ARGV[5]) ~= ARGV[6] or not later(ARGV[5], ARGV[4]) then return {'MISMATCH', last_entry()} end
return {'OK', redis.call('XTRIM', log, 'MINID', '=', ARGV[4])}
