package agent

import (
	"context"
	"errors"
	"time"

	"berth"
	"berth/failure"
	"berth/internal/machine/fetch"
	"berth/wire"
)

// A host that does not exist fails a job only by two witnesses. The evidence travels in the
// member's exit, so it is stored in the same transaction as the end, and a repeated report or a
// repeated settlement sees the same evidence:
//
//	this machine's name servers   control plane's             evidence in the exit
//	----------------------------  --------------------------  ----------------------
//	no such host                  no such host                host, confirmed
//	no such host                  an address, or no answer    host
//	no such host                  the call fails, or is not   none
//	                                known (an older version)
//	a timeout or a failure        not asked                   none
//
// failure.Rules judges the evidence: a confirmed host, or one that two machines report.

// witness is the error of an input whose host does not exist by the name servers of this machine.
type witness struct {
	err        error
	unresolved failure.Unresolved
}

// Error returns the text of the failed fetch.
func (w witness) Error() string { return w.err.Error() }

// Unwrap returns the error of the failed fetch.
func (w witness) Unwrap() error { return w.err }

// lookupLimit bounds each of the two questions to name servers.
const lookupLimit = 5 * time.Second

// witnessed adds the evidence to the error of a failed fetch. It returns any other error as it
// is, and this one, too, if there is no evidence.
func (p *inputsPhase) witnessed(ctx context.Context, err error) error {
	u, ok := errors.AsType[fetch.Unresolved](err)
	if !ok || !u.NotFound || ctx.Err() != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	if !p.sources.NoSuchName(limited, u.Host) {
		return err
	}
	confirmed, asked := p.control.confirmNoHost(ctx, p.alloc, u.Host)
	if asked != nil {
		p.log.Info("control plane was not asked about a host that does not exist here", "host", u.Host, "err", asked)
		return err
	}
	p.log.Warn("host of an input does not exist", "host", u.Host, "control_plane_agrees", confirmed)
	return witness{err, failure.Unresolved{Host: u.Host, Confirmed: confirmed}}
}

// confirmNoHost asks the control plane whether a host exists by its own name servers.
func (c *control) confirmNoHost(ctx context.Context, alloc berth.AllocationID, host string) (missing bool, err error) {
	var answer wire.HostAnswer
	err = c.withTerms(ctx, func(epoch int64) error {
		return c.call(ctx, callTimeout, "hosts",
			wire.HostQuestion{AgentBoot: c.boot, Epoch: epoch, Alloc: alloc, Host: host}, &answer)
	})
	return answer.Missing, err
}
