-- Lowers the promise of a node that may have forgotten its last answers to a claim that a majority of the others has.
-- ARGV[4]: the floor of that majority: no claim up to it but this one can write any more.
local missing = absent()
if missing then return missing end
local held, held_nonce, text, _, mark = promised()
local same = held == epoch and held_nonce == nonce
if not same then
  if held < epoch then return {'UNPROMISED', text} end
  if held > tonumber(ARGV[4]) or not forgetful(mark) then return {'FENCED', text} end
  redis.call('HSET', promise, 'epoch', ARGV[2], 'nonce', nonce, 'tag', '')
end
local id, hash = last_entry()
return {'OK', id, hash}
