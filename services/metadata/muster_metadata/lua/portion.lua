-- Adds the next entries up to the cut to a copy of the log. ARGV[4], ARGV[5]: id and hash of the exact end; ARGV[6], ARGV[7]: of
-- the cut; ARGV[8]: about how many bytes are copied. KEYS[5]: the copy. Answers id and hash of its end.
local refused = refusal()
if refused then return refused end
local id, hash = last_entry()
if id ~= ARGV[4] or hash ~= ARGV[5] or hash_at(ARGV[6]) ~= ARGV[7] then return {'MISMATCH', id, hash} end
local copied = redis.call('XREVRANGE', KEYS[5], '+', '-', 'COUNT', 1)[1]
copied = copied and not later(copied[1], ARGV[6]) and hash_at(copied[1]) == copied[2][6] and copied[1]
-- A copy that was begun for another cut, or begins later than the log, is not gone on with.
local function first_of(key)
  return redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1][1]
end
if not copied or later(first_of(KEYS[5]), first_of(log)) then
  redis.call('UNLINK', KEYS[5])
  copied = nil
end
local left = tonumber(ARGV[8])
while copied ~= ARGV[6] and left > 0 do
  for _, entry in ipairs(redis.call('XRANGE', log, copied and '(' .. copied or '-', ARGV[6], 'COUNT', 4)) do
    redis.call('XADD', KEYS[5], entry[1], unpack(entry[2]))
    copied, left = entry[1], left - 200 - #entry[2][2]
  end
end
return {'OK', copied, hash_at(copied)}
