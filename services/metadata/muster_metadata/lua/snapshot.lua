-- Stores a field of a snapshot (a part, or the list of the parts' hashes) under the key of its position, where
-- nothing is ever changed. KEYS[5]: the snapshot; KEYS[6]: which snapshots there are. ARGV[4]: last id it
-- covers; ARGV[5]: field; ARGV[6]: bytes; ARGV[7]: id of its marker, where that is known, which is so only when
-- it is copied from another node: a copy needs no promise, and comes to a node before its log does.
if ARGV[7] == '' then
  local refused = refusal()
  if refused then return refused end
else
  local missing = absent()
  if missing and missing[2] == 'foreign' then return missing end
end
local found = redis.call('HGET', KEYS[5], ARGV[5])
use_reserve()
if found and found ~= ARGV[6] then return {'MISMATCH', last_entry()} end
if not found then redis.call('HSET', KEYS[5], ARGV[5], ARGV[6]) end
-- A copy is named with its marker when it is whole.
local marker, known = redis.call('HGET', KEYS[6], ARGV[4]), ARGV[5] == 'hashes' and ARGV[7] or ''
if not marker or (marker == '' and known ~= '') then redis.call('HSET', KEYS[6], ARGV[4], known) end
if found then return {'DUP'} end
return {'OK'}
