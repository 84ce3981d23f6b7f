-- Lowers a promise to a claim that a majority of the others has. ARGV[4]: the floor of that majority: no claim up to it but
-- this one can get another promise of theirs, or write there, any more.
local missing = absent()
if missing then return missing end
local held, held_nonce, text = promised()
local same = held == epoch and held_nonce == nonce
if not same then
  if held < epoch then return {'UNPROMISED', text} end
  if held > tonumber(ARGV[4]) then return {'FENCED', text} end
  pass()
  redis.call('HSET', promise, 'epoch', ARGV[2], 'nonce', nonce, 'tag', '')
end
local id, hash = last_entry()
return {'OK', id, hash}
