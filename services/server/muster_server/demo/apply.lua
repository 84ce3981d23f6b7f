-- Adds the words of some lines to the counts of a partition, all or nothing.
-- KEYS: guard of the partition (highest token, position), its counts.
-- ARGV: token, position before the lines, position after them; then word, number, word, number, …
local seen = redis.call('HGET', KEYS[1], 'token')
if seen and ARGV[1] < seen then
  redis.call('HINCRBY', KEYS[1], 'refused', 1)
  return {'STALE', seen}
end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
local position = redis.call('HGET', KEYS[1], 'position') or '0'
if position ~= ARGV[2] then return {'MOVED', position} end
for i = 4, #ARGV, 2 do redis.call('HINCRBY', KEYS[2], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'position', ARGV[3])
return {'OK', ARGV[3]}
