package agent

import (
	"testing"
	"time"

	"berth"
)

// kicked reports whether a member would wake, and takes the wake.
func kicked(o *orders) bool {
	select {
	case <-o.kick:
		return true
	default:
		return false
	}
}

func TestOrdersOnlyAddUp(t *testing.T) {
	t.Parallel()
	o := newOrders()
	o.take(berth.Orders{Start: true}, time.Hour)
	o.take(berth.Orders{Stop: true, GraceMS: 5000, Save: 9}, time.Hour)
	o.take(berth.Orders{Save: 4}, time.Hour)
	o.take(berth.Orders{}, 2*time.Hour) // an older set, which arrives late
	want := berth.Orders{Start: true, Stop: true, GraceMS: 5000, Save: 9}
	if got := o.standing(); got != want {
		t.Errorf("standing are %+v, want %+v", got, want)
	}
	if got := o.runLimit(); got != 2*time.Hour {
		t.Errorf("the limit is %s, want the last one", got)
	}
}

func TestOnlyChangedOrdersWakeTheMember(t *testing.T) {
	t.Parallel()
	o := newOrders()
	for _, c := range []struct {
		name string
		take func()
		want bool
	}{
		{"nothing", func() { o.take(berth.Orders{}, 0) }, false},
		{"a start", o.start, true},
		{"the same start", o.start, false},
		{"the same start in a set", func() { o.take(berth.Orders{Start: true}, 0) }, false},
		{"another limit", func() { o.take(berth.Orders{}, time.Second) }, true},
		{"a claim's orders", func() { o.merge(berth.Orders{Kill: true}, time.Second) }, false},
		{"another grace", func() { o.take(berth.Orders{Kill: true, GraceMS: 1}, time.Second) }, true},
	} {
		c.take()
		if got := kicked(o); got != c.want {
			t.Errorf("%s wakes the member: %v, want %v", c.name, got, c.want)
		}
	}
}
