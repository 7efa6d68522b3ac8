package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/internal/lib/sealer"
	"berth/wire"
)

// cloudFile is the file of --cloud. A create takes effect and then fails in a fifth of all calls, and a new
// instance is in no list for three seconds.
const cloudFile = `url: http://127.0.0.1:1
offers: %s
providers:
  chaos:
    kind: exec
    regions: [here]
    command: [%%s, --file=%%s, --lost=0.2, --lag-least=3s, --lag-most=3s]
`

// cloudArgs prepares the cloud, and returns the flags with which berthd uses it.
func (s *stack) cloudArgs() ([]string, error) {
	s.cloud = faultcloud.New(filepath.Join(s.dir, "cloud.json"), time.Now)
	file, keys := filepath.Join(s.dir, "cloud.yaml"), filepath.Join(s.dir, "secret-key")
	err := errors.Join(
		os.WriteFile(file, fmt.Appendf(nil, s.cloudFile, filepath.Join(s.bin, "faultcloud"), s.cloud.Path), 0o600),
		sealer.Make(keys),
	)
	return []string{"--cloud", file, "--secret-key-file", keys}, err
}

// launched is a machine of a cloud that comes by the cell's failpoint, in its launch or at its end.
// No agent starts on the machine.
func (s *stack) launched(c cell) *work {
	m := berth.MachineID(fmt.Sprintf("cloud-%d", jobNumber.Add(1)))
	w := &work{attempt: 1, drive: func() error { return nil }}
	w.submit = func() error {
		return await("the launch of machine "+string(m)+" is answered", func() error {
			_, err := s.api.Launch(context.Background(),
				wire.LaunchRequest{Pool: "default", Provider: "chaos", Region: "here", Type: "small", Machine: m, Key: string(m)})
			return lasting(err)
		})
	}
	w.ended = func() error { return inTurn(s.boots(m), s.terminate(m), s.wantEnding(m)) }
	if c.under("worker.terminate.") {
		w.drive = func() error { return inTurn(s.boots(m), s.terminate(m)) }
		w.ended = s.wantEnding(m)
	}
	w.undo = s.terminate(m)
	return w
}

// boots waits until the launch of a machine knows its instance.
func (s *stack) boots(m berth.MachineID) func() error {
	return s.wantLaunch(m, cloud.LaunchRunning)
}

// wantEnding waits until the instance of a machine is asked to end, and has ended in the cloud.
func (s *stack) wantEnding(m berth.MachineID) func() error {
	return func() error {
		err := s.wantLaunch(m, cloud.LaunchTerminating, cloud.LaunchGone)()
		if err != nil {
			return err
		}
		return await("the instance of machine "+string(m)+" ends", func() error {
			instances, err := s.instancesOf(m)
			if err == nil && instances[0].State != cloud.Terminated {
				err = fmt.Errorf("it is %s", instances[0].State)
			}
			return err
		})
	}
}

// wantLaunch waits until the launch of a machine is in one of the states, with one instance in the
// cloud.
func (s *stack) wantLaunch(m berth.MachineID, want ...cloud.LaunchState) func() error {
	return func() error {
		err := await(fmt.Sprintf("the launch of machine %s is %v", m, want), func() error {
			page, err := s.api.Launches(context.Background(), m, true)
			if err != nil {
				return err
			}
			if len(page.Items) != 1 {
				return fatal{fmt.Errorf("it has %d launches", len(page.Items))}
			}
			if l := page.Items[0]; !slices.Contains(want, cloud.LaunchState(l.State)) {
				return fmt.Errorf("it is %s: %s", l.State, l.Reason)
			}
			return nil
		})
		if err != nil {
			return err
		}
		_, err = s.instancesOf(m)
		return err
	}
}

// instancesOf returns the instances of a machine in the cloud: one, of one request.
func (s *stack) instancesOf(m berth.MachineID) (of []faultcloud.Instance, err error) {
	state, err := s.cloud.Read()
	if err != nil {
		return nil, err
	}
	for _, i := range state.Instances {
		if i.Machine == m {
			of = append(of, i)
		}
	}
	if len(of) != 1 {
		return nil, fatal{fmt.Errorf("the cloud has %d instances of machine %s: %+v", len(of), m, of)}
	}
	return of, nil
}

func (s *stack) terminate(m berth.MachineID) func() error {
	return func() error {
		return await("the end of machine "+string(m)+" is requested", func() error {
			_, err := s.api.Terminate(context.Background(), m, wire.TerminateRequest{Reason: "chaos"})
			return lasting(err)
		})
	}
}

// wantNoMachine wants each instance of the cloud to have a launch, and each launch to be gone.
func (s *stack) wantNoMachine() error {
	state, err := s.cloud.Read()
	if err != nil {
		return err
	}
	page, err := s.api.Launches(context.Background(), "", true)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, l := range page.Items {
		known[l.Instance] = true
		if l.State != string(cloud.LaunchGone) {
			return fmt.Errorf("the launch of machine %s is %s: %s", l.Machine, l.State, l.Reason)
		}
	}
	machines := map[berth.MachineID]bool{}
	for _, i := range state.Instances {
		if machines[i.Machine] || !known[i.ID] || i.State != cloud.Terminated {
			return fatal{fmt.Errorf("instance %s of machine %s is %s; in a launch: %t; second of its machine: %t", i.ID,
				i.Machine, i.State, known[i.ID], machines[i.Machine])}
		}
		machines[i.Machine] = true
	}
	return nil
}
