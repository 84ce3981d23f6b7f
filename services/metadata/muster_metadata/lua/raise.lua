-- Raises the floor under the promise: from now on no other claim gets a promise at or below it, and a write must
-- name it. ARGV[4]: the floor.
local refused, floor, mark = refusal()
if refused then return refused end
if floor < tonumber(ARGV[4]) then
  pass()
  redis.call('HSET', promise, 'floor', ARGV[4])
  note_run(mark)
end
local id, hash = last_entry()
return {'OK', id, hash}
