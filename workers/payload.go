package workers

import (
	"fmt"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"

	"berth/wire"
)

// Histories hold ids and positions, no specs and no secrets. What is larger
// than this is a mistake; the grant of a gang may grow by some bytes a member.
const (
	maxPayload = 4 << 10
	slotBytes  = 256
)

// maxMessage bounds what an engine's own words may take of a payload.
const maxMessage = 1 << 10

// limited refuses payloads that are too large for what they are.
type limited struct{ converter.DataConverter }

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

// clip shortens a text to n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n-3] + "..."
}
