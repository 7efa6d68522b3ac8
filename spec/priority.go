package spec

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Priority orders jobs, 0 to 1000; low, normal and high name 200, 500 and 800.
type Priority int

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

// ParsePriority reads low, normal, high or a number from 0 to 1000.
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
