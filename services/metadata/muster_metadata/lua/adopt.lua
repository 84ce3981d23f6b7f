-- Gives a lease of the other nodes to a node that lost its data, before it is one of the cluster again: then it counts for
-- who was the last of a name. KEYS[1]: lease table; KEYS[2]: identity of the node. ARGV: name, number of the run,
-- counter, row as JSON.
if redis.call('HGET', KEYS[2], 'identity') then return {'DUP'} end
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local read, row = pcall(cjson.decode, stored or 'null')
if read and type(row) == 'table' and type(row.run) == 'number' and type(row.counter) == 'number' then
  local run, counter = tonumber(ARGV[2]), tonumber(ARGV[3])
  if row.run > run or (row.run == run and row.counter >= counter) then return {'DUP'} end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
return {'OK'}
