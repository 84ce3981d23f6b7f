-- Raises the promise. ARGV[4]: tag of the attempt; empty: any attempt of this claim.
-- Two instances that carry out one claim at once share epoch and nonce; the tag keeps them from
-- counting each other's promises.
local missing = absent()
if missing then return missing end
local held = redis.call('HMGET', promise, 'epoch', 'nonce', 'tag')
local held_epoch = tonumber(held[1])
local same = held_epoch == epoch and held[2] == nonce and (ARGV[4] == '' or held[3] == ARGV[4])
if held_epoch >= epoch and not same then return {'PROMISED', held[1]} end
if not same then redis.call('HSET', promise, 'epoch', ARGV[2], 'nonce', nonce, 'tag', ARGV[4]) end
local id, hash = last_entry()
return {'OK', id, hash, redis.call('GET', acknowledged) or '0-1'}
