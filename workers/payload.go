package workers

import (
	"fmt"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"

	"berth/wire"
)

// Histories hold ids and positions, no specs and no secrets. A larger payload is a mistake;
// the grant of a gang may grow by some bytes per member.
const (
	maxPayload = 4 << 10
	slotBytes  = 256 // for each member of a gang
)

// maxMessage bounds an engine's message within a payload, in bytes.
const maxMessage = 1 << 10

// limited is a data converter that refuses oversized payloads, so that a mistake fails in
// tests rather than growing histories in production.
type limited struct{ converter.DataConverter }

// ToPayload converts one value; its limit depends on the type.
func (l limited) ToPayload(v any) (*commonpb.Payload, error) {
	p, err := l.DataConverter.ToPayload(v)
	if err != nil {
		return nil, err
	}
	limit := maxPayload
	if view, ok := v.(wire.JobView); ok {
		limit += len(view.Slots) * slotBytes
	}
	if size := len(p.GetData()); size > limit {
		return nil, fmt.Errorf("payload of %T has %d bytes: at most %d may enter a history", v, size, limit)
	}
	return p, nil
}

func (l limited) ToPayloads(values ...any) (*commonpb.Payloads, error) {
	if len(values) == 0 {
		return nil, nil
	}
	all := &commonpb.Payloads{}
	for i, v := range values {
		p, err := l.ToPayload(v)
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
		all.Payloads = append(all.Payloads, p)
	}
	return all, nil
}

// clip shortens a text to n bytes, with dots as the last three. It may cut a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n-3] + "..."
}
