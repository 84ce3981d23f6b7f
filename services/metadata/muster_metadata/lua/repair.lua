-- Removes what is after the cut and writes entries of any epoch. ARGV[4], ARGV[5]: id and hash of
-- the exact end; ARGV[6], ARGV[7]: of the cut; then id, record, nonce and hash of each entry. KEYS[5]: a copy of the log up
-- to the cut, which is needed where the entries do not fit after the last id of the log's stream.
local refused = refusal()
if refused then return refused end
local id, hash = last_entry()
local count = #ARGV
if id ~= ARGV[4] or hash ~= ARGV[5] then
  if hash_at(ARGV[count - 3]) ~= ARGV[count] then return {'MISMATCH', id, hash} end
  return {'DUP', id, hash}
end
if hash_at(ARGV[6]) ~= ARGV[7] then return {'MISMATCH', id, hash} end
use_reserve()

-- What was acknowledged can only be cut where a majority forgot it, which an alarm says: it is not waited for any more.
local function forget_cut()
  local stored = acknowledged_id()
  if stored and later(stored, ARGV[6]) and not hash_at(stored) then redis.call('SET', acknowledged, ARGV[6]) end
end

local info = redis.call('XINFO', 'STREAM', log)
local top
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then top = info[i + 1] end
end
if later(ARGV[8], top) then
  if id ~= ARGV[6] then
    for _, entry in ipairs(redis.call('XRANGE', log, '(' .. ARGV[6], '+')) do
      redis.call('XDEL', log, entry[1])
    end
  end
  write(8)
  forget_cut()
  redis.call('UNLINK', KEYS[5])
  return {'OK', ARGV[count - 3], ARGV[count]}
end
-- Removing entries does not lower the last id of a stream: what does not fit after it goes to a copy of the rest.
local whole = log
log = KEYS[5]
local copied, copied_hash = last_entry()
if copied ~= ARGV[6] or copied_hash ~= ARGV[7] then return {'UNFIT', id, hash} end
write(8)
redis.call('RENAME', log, whole)
log = whole
forget_cut()
return {'OK', ARGV[count - 3], ARGV[count]}
