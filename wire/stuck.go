package wire

import (
	"strconv"
	"strings"

	"berth"
)

// HeaderStuck lists, on calls to sync, members whose containers have not ended on SIGKILL since a
// while, because a process in them waits for a file server. The server gives these members up as
// orphaned: the job goes on, and the capacity stays taken until the machine reports the end. Servers
// of earlier versions ignore the header.
const HeaderStuck = "Berth-Stuck"

// maxStuck bounds the members of HeaderStuck.
const maxStuck = 256

// FormatStuck returns the value of HeaderStuck for at most 256 members; more are left out, and follow
// once these have been given up.
func FormatStuck(list []berth.AllocationID) string {
	list = list[:min(len(list), maxStuck)]
	ids := make([]string, len(list))
	for i, id := range list {
		ids[i] = strconv.FormatInt(int64(id), 10)
	}
	return strings.Join(ids, ",")
}

// ParseStuck reads the value of HeaderStuck; "" is no member. Other values are errors of code invalid.
func ParseStuck(value string) ([]berth.AllocationID, error) {
	if value == "" {
		return nil, nil
	}
	var list []berth.AllocationID
	for text := range strings.SplitSeq(value, ",") {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id < 1 || len(list) == maxStuck {
			return nil, berth.Errorf(berth.CodeInvalid,
				"%s %.40q: allowed are 1 to %d ids of allocations, such as 12,15", HeaderStuck, value, maxStuck)
		}
		list = append(list, berth.AllocationID(id))
	}
	return list, nil
}
