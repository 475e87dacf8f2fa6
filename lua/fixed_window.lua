-- Fixed window. Value: "w:count:start", hits in the window that begins at start. The pure half of
-- algorithms/fixed_window.go, in the same order; docs/algorithms.md derives the arithmetic.
--
-- stored        string, or false when the key is absent
-- now           microseconds
-- op, cost      as in group.lua; cost in hits
-- limit         0 .. 4294967295
-- window        microseconds, 1000 .. 2^48 - 1
-- refunded      start of the window that a refund is for; 0: the current one
-- counting      what does not fit is counted all the same, and a peek asks whether the limit is kept so far
--
-- Returns whether cost fits, whether stored was readable, and the value to write with its milliseconds to live
-- (nil: nothing to write).
local function fixed_window(stored, now, op, cost, limit, window, refunded, counting)
  local count, start
  if stored and #stored <= MAX_LENGTH then
    count, start = string.match(stored, '^w:(%d+):(%d+)$')
    if count then
      count, start = count + 0, start + 0
      if count > MAX_COUNT or start > now + MAX_SKEW or start % window > 0 then
        count = nil
      end
    end
  end
  local readable = count

  -- Roll over. A clock behind start stays in that window.
  if not count or now - start >= window then
    count, start = 0, now - now % window
  end

  local fits = true
  if op == 'refund' then
    if not readable or (refunded ~= 0 and refunded ~= start) then
      return true, readable
    end
    count = math.max(0, count - cost)
  else
    if op == 'peek' and counting then
      return count <= limit, readable
    end
    fits = count + cost <= limit
    if op == 'peek' or (op == 'take' and not fits and not counting) then
      return fits, readable
    end
    count = math.min(MAX_COUNT, count + cost)
  end

  return fits, readable, string.format('w:%d:%d', count, start), math.ceil((start + window - now) / 1000) + 1000
end
