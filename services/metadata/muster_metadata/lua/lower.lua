-- Lowers the promise of a node that may have forgotten what it said last, under a claim that stands on a majority of the
-- others. ARGV[4]: the floor that stands there: of no claim up to it anything can come any more but of this one.
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
