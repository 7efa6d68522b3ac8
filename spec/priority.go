package spec

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Priority is the urgency of a job, from 0 to 1000; higher is more urgent. The names low,
// normal and high stand for 200, 500 and 800.
type Priority int

// String returns the name of a named priority, and the number of any other.
func (p Priority) String() string {
	switch p {
	case PriorityLow:
		return "low"
	case PriorityNormal:
		return "normal"
	case PriorityHigh:
		return "high"
	}
	return strconv.Itoa(int(p))
}

// MarshalJSON writes a named priority by its name, any other as a number.
func (p Priority) MarshalJSON() ([]byte, error) {
	s := p.String()
	if s[0] >= '0' && s[0] <= '9' || s[0] == '-' {
		return []byte(s), nil
	}
	return json.Marshal(s)
}

// UnmarshalJSON implements json.Unmarshaler for a name, or for a number with or without
// quotes.
func (p *Priority) UnmarshalJSON(b []byte) error {
	v, err := ParsePriority(unquote(b))
	if err != nil {
		return err
	}
	*p = v
	return nil
}

// The named priorities.
const (
	PriorityLow    Priority = 200
	PriorityNormal Priority = 500
	PriorityHigh   Priority = 800
)

// ParsePriority parses low, normal, high or a number from 0 to 1000. The error lists the
// allowed values.
func ParsePriority(s string) (Priority, error) {
	switch s {
	case "low":
		return PriorityLow, nil
	case "normal":
		return PriorityNormal, nil
	case "high":
		return PriorityHigh, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 1000 {
		return 0, fmt.Errorf("priority %q: allowed are low, normal, high or 0 to 1000", s)
	}
	return Priority(n), nil
}
