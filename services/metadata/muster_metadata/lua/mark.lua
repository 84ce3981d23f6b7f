-- Notes which snapshot counts, and removes all but it and the one before. KEYS[5]: its key; KEYS[6]: which
-- snapshots there are. ARGV[4]: last id it covers; ARGV[5], ARGV[6]: id and hash of its marker, which must be
-- in the log; ARGV[7]: what the snapshot before covers, empty: there is none; ARGV[8]: what the keys begin with.
local refused = refusal()
if refused then return refused end
if hash_at(ARGV[5]) ~= ARGV[6] or not whole(KEYS[5]) then return {'MISMATCH', last_entry()} end
local rows = redis.call('HGETALL', KEYS[6])
for i = 1, #rows, 2 do
  if rows[i + 1] ~= '' and later(rows[i + 1], ARGV[5]) then return {'DUP'} end
end
if redis.call('HGET', KEYS[6], ARGV[4]) ~= ARGV[5] then
  pass()
  redis.call('HSET', KEYS[6], ARGV[4], ARGV[5])
end
for i = 1, #rows, 2 do
  if rows[i] ~= ARGV[4] and rows[i] ~= ARGV[7] then
    redis.call('UNLINK', ARGV[8] .. rows[i])
    redis.call('HDEL', KEYS[6], rows[i])
  end
end
return {'OK'}
