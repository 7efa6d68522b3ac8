package identity

import "time"

// OpenPatient is Open with a minute for each call.
func OpenPatient(setting, audience string) (*Reader, error) {
	return open(setting, audience, time.Minute)
}
