package wire_test

import (
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/wire"
)

func TestStuckMembersPassThroughTheirHeader(t *testing.T) {
	t.Parallel()
	for _, list := range [][]berth.AllocationID{nil, {7}, {7, 1 << 40}} {
		if got, err := wire.ParseStuck(wire.FormatStuck(list)); err != nil || !slices.Equal(got, list) {
			t.Errorf("%v became %v, %v", list, got, err)
		}
	}
	many := make([]berth.AllocationID, 1000)
	for i := range many {
		many[i] = berth.AllocationID(i + 1)
	}
	if got, err := wire.ParseStuck(wire.FormatStuck(many)); err != nil || len(got) != 256 {
		t.Errorf("of 1000 are sent %d, %v", len(got), err)
	}
	for _, value := range []string{"x", "1,", "0", "-1", "1 2", strings.Repeat("1,", 300) + "1"} {
		if got, err := wire.ParseStuck(value); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("%.20q is %v, %v", value, got, err)
		}
	}
}
