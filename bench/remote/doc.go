// Package remote measures reading from an S3 server on this machine (versitygw, and the
// proxy of internal/testserver where latency is added), in one process with what it
// is compared with. It is a test that runs only when asked to:
//
//	go test ./bench/remote -run Report -timeout 30m -out bench/results/remote.md
//
// bench/run.sh does so (ONLY=remote bench/run.sh).
package remote
