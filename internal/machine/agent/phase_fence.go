package agent

import "context"

// fencePhase makes sure that no process of at_most_one work outlives its end, before
// that end is reported. It does nothing for other work.
type fencePhase struct {
	fencing *fencing
	result  *result
}

// Do reports no exit of at_most_one work before the end of its processes is certain.
func (p *fencePhase) Do(context.Context) (phase, error) {
	exit, err := p.fencing.conclude(p.result.exit)
	if err != nil {
		return "", err
	}
	p.result.exit = exit
	return phaseSeal, nil
}
