package blobio_test

import (
	"testing"

	"github.com/penstock-data/penstock/internal/testserver"
	_ "gocloud.dev/blob/azureblob"
	_ "gocloud.dev/blob/gcsblob"
	_ "gocloud.dev/blob/s3blob"
)

func bucketURL(t *testing.T, s *testserver.Server) string {
	t.Helper()
	s.CreateBucket(t, "penstock-test")
	return s.URL("penstock-test")
}

func TestS3(t *testing.T)    { suite(t, bucketURL(t, testserver.S3(t)), 9<<20) }
func TestGCS(t *testing.T)   { suite(t, bucketURL(t, testserver.GCS(t)), 9<<20) }
func TestAzure(t *testing.T) { suite(t, bucketURL(t, testserver.Azure(t)), 9<<20) }
