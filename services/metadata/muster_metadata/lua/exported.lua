-- Stores how far the log was exported. ARGV[4], ARGV[5]: id and hash of the last exported entry. KEYS[5]: where.
local missing = absent()
if missing then return missing end
local stored = redis.call('GET', KEYS[5])
local id, hash = last_entry()
local there = hash_at(ARGV[4])
-- What was reported before may have been trimmed since.
if not there and stored and not later(ARGV[4], stored) then return {'OK'} end
if there ~= ARGV[5] then return {'MISMATCH', id, hash} end
if not stored or later(ARGV[4], stored) then
  pass() -- what was exported may be trimmed, which makes room
  redis.call('SET', KEYS[5], ARGV[4])
end
return {'OK'}
