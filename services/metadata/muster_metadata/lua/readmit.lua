-- Lets a node vote again that may have forgotten what it said before it restarted. ARGV[4], ARGV[5]: id and hash of
-- an entry that it must have, empty: it votes with what it has; ARGV[6]: the floor under the promise; ARGV[7]: its run.
local refused, floor = refusal()
if refused then return refused end
local id, hash = last_entry()
if ARGV[4] ~= '' and hash_at(ARGV[4]) ~= ARGV[5] then return {'MISMATCH', id, hash} end
pass()
redis.call('HSET', promise, 'run', ARGV[7], 'floor', string.format('%d', math.max(floor, tonumber(ARGV[6]))))
return {'OK', id, hash}
