-- Renews a lease. KEYS[1]: lease table; KEYS[2]: identity of the node. ARGV: identity expected, name, session, number of the
-- run, counter, row as JSON. A later run of the same name takes the row; an earlier one is answered SUPERSEDED. A counter
-- that is not higher changes nothing; the answer has the stored one. A row that is none is replaced: the other nodes know more.
if redis.call('HGET', KEYS[2], 'identity') ~= ARGV[1] then return {'NOLOG', 'empty'} end
local stored = redis.call('HGET', KEYS[1], ARGV[2])
local read, row = pcall(cjson.decode, stored or 'null')
if read and type(row) == 'table' and type(row.run) == 'number' and type(row.counter) == 'number' then
  local run, counter = tonumber(ARGV[4]), tonumber(ARGV[5])
  if row.run > run or (row.run == run and row.session ~= ARGV[3]) then return {'SUPERSEDED', row.session} end
  if row.run == run and row.counter >= counter then return {'DUP', string.format('%d', row.counter)} end
end
-- Passes also where the node is out of memory: a command that removes comes first (`use_reserve`).
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], ARGV[2], ARGV[6])
return {'OK'}
