-- Stores the run in which this node votes, also on a log that is not written: it shows a restart.
local reason, _, _, _, _, mark = abstention()
if reason then return reason end
pass()
note_run(mark)
return {'OK'}
