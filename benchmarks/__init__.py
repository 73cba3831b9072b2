"""What loss scaling costs, measured; run it with: python -m benchmarks"""
