package spec

import (
	"fmt"
	"time"
)

// Instant is a point in time in the files of users: RFC 3339, with its offset.
type Instant struct{ time.Time }

// ParseInstant parses an RFC 3339 time. The error shows the allowed form.
func ParseInstant(s string) (Instant, error) {
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return Instant{}, fmt.Errorf("%.60q is not a time: write 2026-01-31T12:00:00Z, or with an offset as in "+
			"2026-01-31T12:00:00+01:00", s)
	}
	return Instant{at}, nil
}

// UnmarshalJSON implements json.Unmarshaler for the form of ParseInstant.
func (i *Instant) UnmarshalJSON(b []byte) error {
	at, err := ParseInstant(unquote(b))
	if err != nil {
		return err
	}
	*i = at
	return nil
}
