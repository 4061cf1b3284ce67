package sink

func child(cfg string) {}
