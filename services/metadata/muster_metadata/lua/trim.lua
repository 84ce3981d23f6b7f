-- Removes what is before ARGV[4]. ARGV[5], ARGV[6]: id and hash of a later Snapshot marker, which must be in
-- the log: so the last entry is never removed. KEYS[5]: the snapshot before that marker's; ARGV[7]: last id it
-- covers: it must be whole here and reach as far as the log is cut.
local refused = refusal()
if refused then return refused end
if hash_at(ARGV[5]) ~= ARGV[6] or not later(ARGV[5], ARGV[7]) or later(ARGV[4], ARGV[7]) then
  return {'MISMATCH', last_entry()}
end
if not whole(KEYS[5]) then return {'MISMATCH', last_entry()} end
return {'OK', redis.call('XTRIM', log, 'MINID', '=', ARGV[4])}
