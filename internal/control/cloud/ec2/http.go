package ec2

import (
	"bytes"
	"errors"
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// maxAnswer is the longest answer in bytes. A page of 1000 instances has a tenth of it.
const maxAnswer = 64 << 20

// wholeAnswers is an HTTP client that returns an answer once its body has been read.
//
// The SDK closes the body of its request as soon as the header of the answer is there. A transport
// that still waits for the end of this body then fails and closes the connection, and with it the
// answer: a server that answers at once would seem to fail at random.
type wholeAnswers struct{ next ec2.HTTPClient }

// Do sends a request.
func (c wholeAnswers) Do(r *http.Request) (*http.Response, error) {
	answer, err := c.next.Do(r)
	if err != nil {
		return answer, err
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if closeErr := answer.Body.Close(); err == nil {
		err = closeErr
	}
	if err == nil && len(body) > maxAnswer {
		err = errors.New("the answer is too long")
	}
	if err != nil {
		return nil, err
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return answer, nil
}
