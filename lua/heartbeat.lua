-- Keeps the list of the processes that share a server.
--
-- KEYS[1]  the list
-- ARGV     1: this process, in hexadecimal
--          2: for how many microseconds it counts unless it comes again; 0: it leaves
--          3: the name, in hexadecimal, of a list that has to be begun
--
-- The key holds the list's name, the last time that it was written, and each process with the time until which it
-- counts: name time process=time process=time ... The name is another one when the list was lost, and the time an
-- earlier one when the server came back with an older state. An unreadable value reads as none.
--
-- Returns one string, fields separated by a space: seconds and microseconds of the server's time; the name and the time
-- that were there (- and 0 for none); the name that is there now; the number of processes.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stored = redis.call('MGET', unpack(KEYS))[1] or ''
local name, last, members = string.match(stored, '^(%x+) (%d+)(.*)$')
if not name or #last > 16 then
  name, last, members = '-', '0', ''
end
local span = tonumber(ARGV[2])
local kept = {}
for process, ends in string.gmatch(members, ' (%x+)=(%d+)') do
  local left = tonumber(ends) - now
  if process ~= ARGV[1] and left > 0 and left <= MAX_SKEW and #kept < MAX_PROCESSES then
    kept[#kept + 1] = string.format(' %s=%d', process, ends)
  end
end
if span > 0 then
  kept[#kept + 1] = string.format(' %s=%d', ARGV[1], now + span)
end
local begun = name == '-' and ARGV[3] or name
local written = now
if tonumber(last) > now and tonumber(last) - now <= MAX_SKEW then
  written = last
end
redis.call('SET', KEYS[1], string.format('%s %d', begun, written) .. table.concat(kept), 'PX', 'NEVER_REFILLED')
return string.format('%s %s %s %s %s %d', time[1], time[2], name, last, begun, #kept)
