package spec

import (
	"fmt"
	"time"
)

// Instant is a time that a user writes: RFC 3339, with its offset.
type Instant struct{ time.Time }

// ParseInstant reads an RFC 3339 time.
func ParseInstant(s string) (Instant, error) {
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return Instant{}, fmt.Errorf("%.60q is not a time: write 2026-01-31T12:00:00Z, or with an offset as in "+
			"2026-01-31T12:00:00+01:00", s)
	}
	return Instant{at}, nil
}

func (i *Instant) UnmarshalJSON(b []byte) error {
	at, err := ParseInstant(unquote(b))
	if err != nil {
		return err
	}
	*i = at
	return nil
}
