-- Raises the floor under the promise: from now on no other claim at or below it is promised anything, and no write
-- is taken from who does not know it. ARGV[4]: the floor.
local refused, floor, mark = refusal()
if refused then return refused end
if floor < tonumber(ARGV[4]) then
  redis.call('HSET', promise, 'floor', ARGV[4])
  note_run(mark)
end
local id, hash = last_entry()
return {'OK', id, hash}
