// Command faultcloud is the program of a cloud provider of kind exec, for tests: it serves one call on the cloud in
// a file (package internal/control/cloud/faultcloud), with faults that it draws at random.
//
// A share of the creates takes effect and then fails, which is the answer of a cloud that timed out. A new
// instance is listed late.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudexec"
	"berth/internal/control/cloud/faultcloud"
	"berth/internal/lib/failpoint"
)

func main() {
	file := flag.String("file", "", "the cloud's file")
	lost := flag.Float64("lost", 0, "share of the creates that take effect and then fail")
	least := flag.Duration("lag-least", 0, "least time until a new instance is listed")
	most := flag.Duration("lag-most", 0, "greatest time until a new instance is listed")
	flag.Parse()
	// By the clock of the berthd under test, which may be a faster one.
	now, _ := failpoint.Clock()
	if now == nil {
		now = func(t time.Time) time.Time { return t }
	}
	c := faultcloud.New(*file, func() time.Time { return now(time.Now()) })
	c.Script = func(s *faultcloud.State) {
		s.Lag = *least + time.Duration(rand.Float64()*float64(*most-*least))
		if rand.Float64() < *lost {
			s.Creates = append(s.Creates, faultcloud.Fault{Kind: cloud.Unknown, After: true})
		}
	}
	err := cloudexec.Serve(context.Background(), c, os.Stdin, os.Stdout, os.Getenv(cloudexec.AnswersEnv))
	if err != nil {
		fmt.Fprintln(os.Stderr, "faultcloud:", err)
		os.Exit(1)
	}
}
