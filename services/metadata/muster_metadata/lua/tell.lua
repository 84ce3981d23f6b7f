-- Keeps events of the audit trail. KEYS[1]: stream; KEYS[2]: identity of the node. ARGV: identity expected, `refill` or nothing, most
-- events to keep, oldest time to keep in ms, then time and bytes of each event. A node that lost its data takes none but those of a
-- refill, with which it begins. The times are the caller's: this server's clock may be wrong, and would end events by their age.
local found = redis.call('HGET', KEYS[2], 'identity')
if found and found ~= ARGV[1] then return {'NOLOG', 'foreign', found} end
local begun = redis.call('EXISTS', KEYS[1]) == 1
if ARGV[2] == 'refill' then
  if begun then return {'DUP'} end
elseif not found then
  return {'NOLOG', 'empty'}
end
local ms, sequence = 0, 0
if begun then
  local info = redis.call('XINFO', 'STREAM', KEYS[1])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      ms, sequence = string.match(info[i + 1], '^(%d+)-(%d+)$')
      ms, sequence = tonumber(ms), tonumber(sequence)
    end
  end
end
-- An event begins with its id. One that is told again, as while no majority answers, takes the place of the one before: else a few of
-- them would remove all others in time.
local known = {}
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1000)) do
  known[string.sub(entry[2][2], 1, 18)] = entry[1]
end
for i = 5, #ARGV, 2 do
  local again = known[string.sub(ARGV[i + 1], 1, 18)]
  if again then redis.call('XDEL', KEYS[1], again) end
  if tonumber(ARGV[i]) > ms then
    ms, sequence = tonumber(ARGV[i]), 0
  else
    sequence = sequence + 1
  end
  redis.call('XADD', KEYS[1], string.format('%.0f-%.0f', ms, sequence), 'e', ARGV[i + 1])
end
redis.call('XTRIM', KEYS[1], 'MAXLEN', ARGV[3])
redis.call('XTRIM', KEYS[1], 'MINID', ARGV[4])
return {'OK'}
