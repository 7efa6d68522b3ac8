package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// answers asks registries questions whose answer is yes or an error, and remembers each yes for a
// period. Concurrent callers with the same question share one request. The answers are kept in memory
// only, by hashes of the questions.
type answers struct {
	fresh  time.Duration
	asking singleflight.Group

	mu sync.Mutex
	at map[string]time.Time // time of each yes, by question
}

const (
	maxAnswers = 16384 // kept answers; all are dropped beyond this
	// answerTimeout bounds a request, which is made for all callers and outlives each of them.
	answerTimeout = 30 * time.Second
)

func newAnswers(fresh time.Duration) *answers {
	return &answers{fresh: fresh, at: map[string]time.Time{}}
}

// question returns the hash of a list of texts. Two lists never give one question, since the text
// that is hashed contains the bounds of its parts.
func question(parts ...string) string {
	text, err := json.Marshal(parts)
	if err != nil {
		panic("a list of texts cannot be encoded: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// ask returns nil if the answer to the question has been yes within the period, and otherwise the
// answer of request.
func (a *answers) ask(ctx context.Context, question string, request func(ctx context.Context) error) error {
	if a.known(question) {
		return nil
	}
	answer := a.asking.DoChan(question, func() (any, error) {
		patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
		defer cancel()
		err := request(patient)
		if err == nil {
			a.note(question)
		}
		return nil, err
	})
	select {
	case got := <-answer:
		return got.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a *answers) known(question string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, known := a.at[question]
	return known && time.Since(at) < a.fresh
}

// note remembers that the answer is yes.
func (a *answers) note(question string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.at) >= maxAnswers {
		clear(a.at)
	}
	a.at[question] = time.Now()
}
