-- Keeps events of the audit trail. KEYS[1]: stream; KEYS[2]: identity of the node. ARGV: identity expected, `refill` or nothing, most
-- events to keep, oldest time to keep in ms, then the events. A node that lost its data takes none but those of a refill, with which it
-- begins.
local found = redis.call('HGET', KEYS[2], 'identity')
if found and found ~= ARGV[1] then return {'NOLOG', 'foreign', found} end
if ARGV[2] == 'refill' then
  if redis.call('EXISTS', KEYS[1]) == 1 then return {'DUP'} end
elseif not found then
  return {'NOLOG', 'empty'}
end
for i = 5, #ARGV do redis.call('XADD', KEYS[1], '*', 'e', ARGV[i]) end
redis.call('XTRIM', KEYS[1], 'MAXLEN', ARGV[3])
redis.call('XTRIM', KEYS[1], 'MINID', ARGV[4])
return {'OK'}
