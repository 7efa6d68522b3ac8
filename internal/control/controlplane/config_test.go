package controlplane_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"berth/internal/control/controlplane"
)

func TestTheConfigurationIsPrintedWithoutSecrets(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://berth:hunter2@db/berth", "postgres://berth@db/berth?password=hunter2", "host=db password=hunter2",
	} {
		cfg := controlplane.Default()
		cfg.DatabaseURL = url
		cfg.BlobURL = "s3://bucket?access_key=hunter2"
		var b bytes.Buffer
		slog.New(slog.NewTextHandler(&b, nil)).Info("starts", "config", cfg)
		if strings.Contains(b.String(), "hunter2") || !strings.Contains(b.String(), "s3://bucket") {
			t.Errorf("printed %s", b.String())
		}
	}
}
